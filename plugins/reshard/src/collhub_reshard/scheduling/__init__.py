"""Who sends what when: bounds, orders, exact schedules and splitting, on the level of hosts."""
