"""The admin of incidents: the list, the page of one incident, and retrying its runs."""
