"""What third parties test their plugins with."""
