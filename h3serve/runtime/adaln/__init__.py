"""Modulation tables of the timesteps, from device, host, disk or the checkpoint."""
