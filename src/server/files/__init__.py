"""Files that clients upload, and batches of requests that are read from them, on local disk (`server.files_dir`)."""
