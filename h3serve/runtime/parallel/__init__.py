"""How the ranks of a process group share one generation."""
