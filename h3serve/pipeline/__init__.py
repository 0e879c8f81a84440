"""One generation, from request to decoded video and sound."""
