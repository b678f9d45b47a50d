"""The admin of jobs: list, form, preview, page, actions and deletion."""
