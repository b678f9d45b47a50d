"""What the lists have in common: bounds for millions of rows, filters, confirmations, exports."""
