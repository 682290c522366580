"""``asyncpool dashboard``: a page that shows the pools and servers of this user, live."""
