"""A web service that makes thumbnails of uploaded images."""
