"""Graph: immutable values between trace and compile."""
