"""An app with tasks of Django's own framework. It is installed only if Django has them."""
