"""activault.analyze"""
