package publish

// Help returns the help text of every metric that a Publisher exposes, by name,
// for whoever writes them out.
func Help() map[string]string {
	return map[string]string{
		"kvatlas_publish_messages_total":         "Messages sent to NATS.",
		"kvatlas_publish_bytes_total":            "Bytes of the messages sent.",
		"kvatlas_publish_acks_total":             "Messages that the stream has acknowledged.",
		"kvatlas_publish_duplicate_acks_total":   "Acknowledgements of messages that the stream had already.",
		"kvatlas_publish_heartbeats_total":       "Heartbeats sent.",
		"kvatlas_publish_blocked_total":          "Times that an event had to wait because too much was not acknowledged.",
		"kvatlas_publish_blocked_seconds_total":  "Time that events waited so, in seconds.",
		"kvatlas_publish_dropped_events_total":   "Events dropped, by reason.",
		"kvatlas_publish_lost_messages_total":    "Messages that could not be sent over core NATS and are lost.",
		"kvatlas_publish_recovery_bytes_total":   "Bytes of answers to replicas that missed something.",
		"kvatlas_publish_recovery_answers_total": "Answers to replicas that missed something, by answer: what they were given.",
		"kvatlas_publish_retries_total":          "Failed attempts to send, by reason.",
		"kvatlas_publish_refused_streams":        "1 while the stream refuses events for so long that replicas are told to ask for them.",
		"kvatlas_publish_pending_bytes":          "Bytes of events accepted and not acknowledged yet.",
		"kvatlas_publish_in_flight_messages":     "Messages sent and not acknowledged yet.",
		"kvatlas_publish_batch_events":           "Events of a message.",
		"kvatlas_publish_ack_seconds":            "Time from sending a message to its acknowledgement, in seconds.",
		"kvatlas_publish_events_total":           "Events published, by kind.",
		"kvatlas_publish_blocks_total":           "Blocks of the events published, by kind.",
	}
}
