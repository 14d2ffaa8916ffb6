"""What notifications reaches the world by: mail servers and webhooks."""
