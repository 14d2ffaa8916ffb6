"""The five ports inside one process: SQLite files and memory."""
