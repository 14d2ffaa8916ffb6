"""The six ports over PostgreSQL, RabbitMQ, Redis and Kafka."""
