"""Run folders and text on `s3://` and `gs://`."""
