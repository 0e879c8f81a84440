"""The official form of a prompt: checked, laid out and, through an endpoint that somebody names, written."""
