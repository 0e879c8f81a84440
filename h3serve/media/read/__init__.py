"""Files to arrays: images, videos and audio, probed and decoded."""
