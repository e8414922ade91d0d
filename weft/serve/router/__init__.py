"""A router in front of several servers: conversations stay where their prefix is cached."""
