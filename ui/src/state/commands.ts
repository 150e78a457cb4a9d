/** Keys that do something wherever the focus is, except in fields. What was mounted last is asked first. */

import { useEffect, useRef } from 'preact/hooks'

export interface Commands {
  [key: string]: () => void
}

const mounted: { current: Commands }[] = []

export function useCommands(commands: Commands): void {
  const latest = useRef(commands)
  latest.current = commands
  useEffect(() => {
    mounted.push(latest)
    return () => {
      mounted.splice(mounted.indexOf(latest), 1)
    }
  }, [])
}

export function listenToKeys(): void {
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return
    const target = event.target as HTMLElement
    if (isField(target)) {
      if (event.key === 'Escape') {
        event.preventDefault() // the browser would empty a search field and tell nobody
        target.blur()
      }
      return
    }
    const command = mounted.findLast(({ current }) => event.key in current)?.current[event.key]
    if (!command) return
    event.preventDefault()
    command()
  })
}

function isField(element: HTMLElement): boolean {
  return element.matches('input, select, textarea')
}
