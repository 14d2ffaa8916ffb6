"""The six ports inside one process: SQLite files and memory."""
