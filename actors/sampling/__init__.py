"""Drawing tokens: settings, filters, shared noise. The same code runs on both sides of the boundary."""
