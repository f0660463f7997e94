"""activault.extract"""
