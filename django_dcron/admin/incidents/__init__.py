"""The admin of incidents: the list, the page of one incident, and the rerun of its runs."""
