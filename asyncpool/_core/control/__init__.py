"""What a program and the commands that ask it say to each other on a control socket."""
