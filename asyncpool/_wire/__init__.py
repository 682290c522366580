"""What the service and its workers both know: frames, messages, the page, pickling, codecs."""
