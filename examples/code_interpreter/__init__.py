"""A web service that runs generated code in sandboxes."""
