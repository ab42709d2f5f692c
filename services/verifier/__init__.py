"""The target model with its co-located draft head, behind gRPC."""
