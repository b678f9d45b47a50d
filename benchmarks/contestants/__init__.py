"""Code for the contestants' own environments. It imports neither django-dcron nor its tests."""
