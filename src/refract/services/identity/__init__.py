"""Identity: users, workspaces, API keys, subscriptions and the audit trail."""
