"""activault.jobs"""
