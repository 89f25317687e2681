"""Write a topology as an InfraGraph document that gives the same topology back."""
