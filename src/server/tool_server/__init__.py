"""MCP servers whose tools the Responses API runs (`server.tool_server`)."""
