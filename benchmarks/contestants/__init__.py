"""What runs in the contestants' own environments: nothing here imports django-dcron or its tests."""
