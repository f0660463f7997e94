"""activault.train"""
