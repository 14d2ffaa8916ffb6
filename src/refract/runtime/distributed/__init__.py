"""The five ports over PostgreSQL, RabbitMQ and Redis."""
