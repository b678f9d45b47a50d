"""The admin of jobs: list, form, preview, page, verbs and deletion."""
