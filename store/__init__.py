"""activault.store"""
