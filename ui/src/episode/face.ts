/** What the chat and the token face have in common: they show one timeline, and know which message is at the top. */

import type { RefObject } from 'preact'

import type { Episode } from '../data/types'

export interface FaceCommands {
  /** To the next message, or the previous one. */
  step: (by: 1 | -1) => void
}

export interface FaceProps {
  episode: Episode
  timeline: number
  /** The message to begin at; -1 for the timeline's beginning. */
  node: number
  onNode: (node: number) => void
  /** The message that the reader is at, also before the address says so; -1 for the beginning. */
  current: () => number
  commands: RefObject<FaceCommands | null>
}
