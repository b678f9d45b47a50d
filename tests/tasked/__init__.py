"""An app whose tasks are Django's own. Installed only where Django has them."""
