"""The only room that speaks Dramatiq and AMQP: broker, actors, middleware, the pump, and the wake-ups."""
