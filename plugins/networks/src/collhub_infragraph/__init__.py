"""InfraGraph documents for Collective Hub, read and written."""
