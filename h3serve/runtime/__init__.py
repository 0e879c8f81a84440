"""Where tensors live and how ranks cooperate."""
