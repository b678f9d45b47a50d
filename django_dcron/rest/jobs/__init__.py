"""Jobs: listed, read, written, and what can be done to them."""
