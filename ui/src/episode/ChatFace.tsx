/** A timeline's messages, readable. */

import { useEffect, useMemo, useRef } from 'preact/hooks'

import { VirtualList, type ListHandle } from '../list/VirtualList'
import type { Episode, Message } from '../data/types'
import { t } from '../text/translate'
import { MessageCard } from './MessageCard'
import type { FaceProps } from './face'

const LINE_HEIGHT = 20
const LINE_LENGTH = 90

export function ChatFace({ episode, timeline, node, onNode, current, commands }: FaceProps) {
  const messages = useMemo(() => messagesOf(episode, timeline), [episode, timeline])
  const list = useRef<ListHandle>(null)
  const identity = `${episode.row.episode_id}/${timeline}`

  useEffect(() => {
    commands.current = {
      step: (by) => {
        const from = Math.max(0, messages.findIndex((message) => message.node === current()))
        const at = Math.max(0, Math.min(from + by, messages.length - 1))
        list.current?.scrollTo(at)
        onNode(messages[at]?.node ?? -1)
      },
    }
  }, [messages])
  useEffect(() => {
    if (node < 0) return
    const goTo = (): void => list.current?.scrollTo(Math.max(0, messages.findIndex((message) => message.node === node)))
    goTo()
    // Measuring what comes into the window moves what stands below it, so the place is taken once more.
    const settled = setTimeout(goTo, 60)
    return () => clearTimeout(settled)
  }, [identity])

  return (
    <VirtualList
      key={identity}
      class="chat"
      label={t('chat')}
      role="feed"
      length={messages.length}
      height={(index) => estimate(messages[index]!)}
      measured
      identity={identity}
      handle={list}
      onTop={(index) => onNode(messages[index]?.node ?? -1)}
      render={(index) => <MessageCard key={messages[index]!.node} message={messages[index]!} />}
    />
  )
}

export function messagesOf(episode: Episode, timeline: number): Message[] {
  const byNode = new Map(episode.messages.map((message) => [message.node, message]))
  const path = episode.timelines[timeline]?.path
  if (path === undefined) return episode.messages
  return path.flatMap((node) => byNode.get(node) ?? [])
}

function estimate(message: Message): number {
  const length = typeof message.content === 'string' ? message.content.length : 200
  return 64 + LINE_HEIGHT * Math.min(300, Math.ceil(length / LINE_LENGTH) + 3 * message.tool_calls.length)
}
