"""The routes of sms: parse, call, render."""
