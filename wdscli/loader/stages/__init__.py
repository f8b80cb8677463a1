"""What a pipeline does with samples."""
