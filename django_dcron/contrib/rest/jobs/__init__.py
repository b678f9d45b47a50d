"""Jobs: list, read, create, change and delete them, and act on them."""
