"""Arrays to files: MP4, WAV, PNG folder, npz."""
