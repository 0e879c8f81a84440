"""What every room asks of the operating system: files, memory, processes. Standard library only."""
